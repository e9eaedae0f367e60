package runnel;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.types.StructType;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.Tuple2;
import scala.collection.JavaConverters;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.math.BigInt$;
import scala.runtime.AbstractFunction0;

/**
 * Physical plans that are made once and run over other rows each time.
 *
 * They are planned over slots: leaves of which nothing is known but their columns, so no rule of the optimizer can look at
 * rows. A run makes a new object of every node, with the run's rows in place of the slots. What Spark remembers (an RDD, a
 * shuffle, a broadcast) it remembers in nodes, so nothing of one run can reach another. The prepared nodes themselves are
 * never executed.
 *
 * Compiled when the driver starts, by the compiler that Spark brings, which knows neither generics nor lambdas. Executors
 * never see these classes.
 */
public final class PreparedPlans {
    private static final String SPARK = "org.apache.spark.sql.execution.";

    /** Operators that keep nothing outside of their nodes; a plan with any other is not prepared. */
    private static final Set OPERATORS = new HashSet(Arrays.asList(new String[] {
        SPARK + "ProjectExec",
        SPARK + "FilterExec",
        SPARK + "UnionExec",
        SPARK + "SortExec",
        SPARK + "CoalesceExec",
        SPARK + "aggregate.HashAggregateExec",
        SPARK + "aggregate.ObjectHashAggregateExec",
        SPARK + "aggregate.SortAggregateExec",
        SPARK + "joins.SortMergeJoinExec",
        SPARK + "joins.ShuffledHashJoinExec",
        SPARK + "joins.BroadcastHashJoinExec",
        SPARK + "joins.BroadcastNestedLoopJoinExec",
        SPARK + "joins.CartesianProductExec",
        SPARK + "exchange.ShuffleExchangeExec",
        SPARK + "exchange.BroadcastExchangeExec"
    }));

    private final SparkSession session;
    private final JavaSparkContext context;

    public PreparedPlans(SparkSession session) {
        this.session = session;
        this.context = new JavaSparkContext(session.sparkContext());
    }

    /** A frame in place of rows that come later: one partition, so small that it is never moved. */
    public Dataset slot(String schema) {
        Statistics small = new Statistics(
            BigInt$.MODULE$.apply(1), (Option) None$.MODULE$, AttributeMap$.MODULE$.empty(), false);
        return Dataset$.MODULE$.ofRows(session, new LogicalRDD(
            DataTypeUtils$.MODULE$.toAttributes((StructType) StructType.fromJson(schema)), rdd(new ArrayList()),
            SinglePartition$.MODULE$, (Seq) Nil$.MODULE$, false, (Option) None$.MODULE$, session, new Some(small),
            (Option) None$.MODULE$, false));
    }

    /** Plan a frame over slots. Raises when the plan holds what its copies would share. */
    public Plan prepare(Dataset frame, List slots) {
        RDD[] places = new RDD[slots.size()];
        StructType[] schemas = new StructType[slots.size()];
        for (int i = 0; i < places.length; i++) {
            Dataset slot = (Dataset) slots.get(i);
            places[i] = ((LogicalRDD) slot.queryExecution().analyzed()).rdd();
            schemas[i] = slot.schema();
        }
        return new Plan(this, frame.queryExecution().executedPlan(), places, schemas);
    }

    private RDD rdd(List rows) {
        return context.parallelize(rows, 1).rdd();
    }

    /** Never changes, so threads may share it. */
    public static final class Plan {
        private final PreparedPlans plans;
        private final SparkPlan root;
        private final StructType schema;
        private final RDD[] slots;
        private final StructType[] schemas;

        Plan(PreparedPlans plans, SparkPlan root, RDD[] slots, StructType[] schemas) {
            this.plans = plans;
            this.root = root;
            this.schema = root.schema();
            this.slots = slots;
            this.schemas = schemas;
            check(root);
        }

        private void check(SparkPlan node) {
            if (!node.subqueries().isEmpty()) {
                throw new IllegalArgumentException("a subquery in " + node.nodeName());
            }
            if (node instanceof RDDScanExec) {
                place((RDDScanExec) node);
                return;
            }
            if (!OPERATORS.contains(node.getClass().getName())) {
                throw new IllegalArgumentException("the operator " + node.nodeName());
            }
            List children = JavaConverters.seqAsJavaList(node.children());
            for (int i = 0; i < children.size(); i++) {
                check((SparkPlan) children.get(i));
            }
        }

        private int place(RDDScanExec leaf) {
            for (int i = 0; i < slots.length; i++) {
                if (slots[i] == leaf.rdd()) {
                    return i;
                }
            }
            throw new IllegalArgumentException("rows that are not in a slot");
        }

        /**
         * Leaves the result as an Arrow stream in the file in which the rows came: per slot the length of an Arrow stream,
         * and the stream. Bytes in the answer of a call would wait for the network's acknowledgements.
         */
        public void run(final String file) {
            final SparkSession session = plans.session;
            final Plan plan = this;
            // Nodes belong to the session that is active when they are made; tasks see its settings as the job's.
            session.withActive(new AbstractFunction0() {
                public Object apply() {
                    return SQLExecution$.MODULE$.withSQLConfPropagated(session, new AbstractFunction0() {
                        public Object apply() {
                            return plan.runInSession(new File(file));
                        }
                    });
                }
            });
        }

        Object runInSession(File file) {
            try {
                byte[] result = encoded(copy(root, read(Files.readAllBytes(file.toPath()))).executeCollect());
                Files.write(file.toPath(), result, new OpenOption[0]);
                return null;
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        private RDD[] read(byte[] inputs) throws IOException {
            RDD[] rows = new RDD[slots.length];
            DataInputStream read = new DataInputStream(new ByteArrayInputStream(inputs));
            for (int i = 0; i < rows.length; i++) {
                byte[] stream = new byte[read.readInt()];
                read.readFully(stream);
                rows[i] = plans.rdd(decoded(stream, schemas[i]));
            }
            return rows;
        }

        /** A new object of every node: `withNewChildren` would keep nodes that are equal, and what they remember. */
        SparkPlan copy(SparkPlan node, RDD[] rows) {
            if (node instanceof RDDScanExec) {
                RDDScanExec leaf = (RDDScanExec) node;
                return leaf.copy(leaf.output(), rows[place(leaf)], leaf.name(), leaf.outputPartitioning(),
                    leaf.outputOrdering(), leaf.stream());
            }
            List children = JavaConverters.seqAsJavaList(node.children());
            List copies = new ArrayList(children.size());
            for (int i = 0; i < children.size(); i++) {
                copies.add(copy((SparkPlan) children.get(i), rows));
            }
            TreeNode copied = node.withNewChildrenInternal(JavaConverters.asScalaBuffer(copies).toIndexedSeq());
            if (copied == node) {
                throw new IllegalStateException(node.nodeName() + " was not copied");
            }
            return (SparkPlan) copied;
        }

        private static List decoded(byte[] stream, StructType expected) {
            Tuple2 read = ArrowConverters$.MODULE$.fromIPCStream(stream);
            if (!expected.equals(read._2())) {
                throw new IllegalArgumentException("rows of " + read._2() + " where " + expected + " belongs");
            }
            scala.collection.Iterator iterator = (scala.collection.Iterator) read._1();
            UnsafeProjection project = UnsafeProjection.create(expected);
            List rows = new ArrayList();
            while (iterator.hasNext()) {
                rows.add(project.apply((InternalRow) iterator.next()).copy());
            }
            return rows;
        }

        byte[] encoded(InternalRow[] rows) {
            if (rows.length == 0) {
                return ArrowConverters$.MODULE$.createEmptyArrowBatch(schema, "UTC", false, false);
            }
            scala.collection.Iterator batches = ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
                JavaConverters.asScalaIterator(Arrays.asList((Object[]) rows).iterator()), schema, 0L, 0L, "UTC", false,
                false);
            byte[] whole = (byte[]) batches.next();
            if (batches.hasNext()) {
                throw new IllegalStateException("more than one batch");
            }
            return whole;
        }
    }
}
