package runnel;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.ObjectOutputStream;
import java.io.OutputStream;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.Partition;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.executor.TaskMetrics$;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.types.StructType;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.Tuple2;
import scala.collection.JavaConverters;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.math.BigDecimal$;
import scala.math.BigInt$;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction0;

/**
 * Plans that are made once and run over other rows each time, by the thread that asks.
 *
 * They are planned over slots: leaves of one partition, of which nothing is known but their columns, so no rule of the
 * optimizer can look at rows. Operators that would remember rows (a shuffle, a broadcast, a subquery, a cache) are
 * refused; those that are left compute their rows anew from the rows of the slots whenever they are asked, as they do in
 * a task that is run again. A run gives the slots their rows, computes the only partition as a task would, and takes the
 * rows away.
 *
 * Compiled when the driver starts, by the compiler that Spark brings, which knows neither generics nor lambdas. Nothing of
 * it leaves the driver.
 */
public final class PreparedPlans {
    private static final String SPARK = "org.apache.spark.sql.execution.";

    /** Operators that keep no row between two computations; a plan with any other is not prepared. */
    private static final Set OPERATORS = new HashSet(Arrays.asList(new String[] {
        SPARK + "ProjectExec",
        SPARK + "FilterExec",
        SPARK + "UnionExec",
        SPARK + "SortExec",
        SPARK + "CoalesceExec",
        SPARK + "aggregate.HashAggregateExec",
        SPARK + "aggregate.SortAggregateExec",
        SPARK + "joins.SortMergeJoinExec",
        SPARK + "joins.ShuffledHashJoinExec",
        SPARK + "joins.CartesianProductExec"
    }));

    /** Numbers of runs; those of Spark's tasks are positive. */
    private static final AtomicLong NUMBERS = new AtomicLong(-1);

    private final SparkSession session;
    private final MemoryManager memory;

    public PreparedPlans(SparkSession session) throws Throwable {
        this.session = session;
        // Spark's environment has methods over classes that are not there, so it cannot be named in the usual way.
        this.memory = (MemoryManager) MethodHandles.publicLookup()
            .findVirtual(SparkEnv.class, "memoryManager", MethodType.methodType(MemoryManager.class))
            .invokeWithArguments(new Object[] {session.sparkContext().env()});
    }

    /** A frame in place of rows that come later: one partition, so small that it is never moved. */
    public Dataset slot(String columns) {
        StructType schema = (StructType) StructType.fromJson(columns);
        Statistics small = new Statistics(
            BigInt$.MODULE$.apply(1), (Option) None$.MODULE$, AttributeMap$.MODULE$.empty(), false);
        return Dataset$.MODULE$.ofRows(session, new LogicalRDD(
            DataTypeUtils$.MODULE$.toAttributes(schema), new Slot(session, schema), SinglePartition$.MODULE$,
            (Seq) Nil$.MODULE$, false, (Option) None$.MODULE$, session, new Some(small), (Option) None$.MODULE$, false));
    }

    /** Plan a frame over slots; see `refusal`. */
    public Plan prepare(Dataset frame, List slots) {
        Slot[] places = new Slot[slots.size()];
        for (int i = 0; i < places.length; i++) {
            places[i] = (Slot) ((LogicalRDD) ((Dataset) slots.get(i)).queryExecution().analyzed()).rdd();
        }
        final SparkPlan planned = frame.queryExecution().executedPlan();
        SparkPlan root = (SparkPlan) session.withActive(new AbstractFunction0() {
            public Object apply() {
                return withoutExchanges(planned);
            }
        });
        return new Plan(session, memory, root, places);
    }

    /** Without exchanges that bring all rows into one partition: what they would shuffle is here already. */
    static SparkPlan withoutExchanges(SparkPlan node) {
        List children = JavaConverters.seqAsJavaList(node.children());
        List changed = new ArrayList(children.size());
        for (int i = 0; i < children.size(); i++) {
            changed.add(withoutExchanges((SparkPlan) children.get(i)));
        }
        if (node instanceof ShuffleExchangeExec && node.outputPartitioning().numPartitions() == 1) {
            return new CoalesceExec(1, (SparkPlan) changed.get(0));
        }
        return children.equals(changed) ? node : (SparkPlan) node.withNewChildrenInternal(
            JavaConverters.asScalaBuffer(changed).toIndexedSeq());
    }

    /** Rows that are there while a plan runs, for the thread that runs it. */
    static final class Slot extends RDD {
        private final StructType schema;
        private final Partition[] one;
        private final transient ThreadLocal rows = new ThreadLocal();

        Slot(SparkSession session, StructType schema) {
            super(session.sparkContext(), (Seq) Nil$.MODULE$, ClassTag$.MODULE$.apply(InternalRow.class));
            this.schema = schema;
            this.one = new JavaSparkContext(session.sparkContext()).parallelize(new ArrayList(), 1).rdd().partitions();
        }

        void fill(byte[] stream) {
            rows.set(stream);
        }

        void clear() {
            rows.remove();
        }

        public Partition[] getPartitions() {
            return one;
        }

        public scala.collection.Iterator compute(Partition partition, TaskContext context) {
            byte[] stream = (byte[]) rows.get();
            if (stream == null) {
                throw new IllegalStateException("a slot without rows");
            }
            Tuple2 read = ArrowConverters$.MODULE$.fromIPCStreamWithIterator(stream, context);
            if (!schema.equals(read._2())) {
                throw new IllegalArgumentException("rows of " + read._2() + " where " + schema + " belongs");
            }
            return (scala.collection.Iterator) read._1();
        }
    }

    /** One plan; a thread runs it after the other. */
    public static final class Plan {
        private final SparkSession session;
        private final MemoryManager memory;
        private final SparkPlan root;
        private final StructType schema;
        private final Slot[] slots;
        private final Properties settings = new Properties();
        private RDD rows;

        Plan(SparkSession session, MemoryManager memory, SparkPlan root, Slot[] slots) {
            this.session = session;
            this.memory = memory;
            this.root = root;
            this.schema = root.schema();
            this.slots = slots;
            // As tasks see the settings of the session that planned them.
            scala.collection.Iterator all = session.sessionState().conf().getAllConfs().iterator();
            while (all.hasNext()) {
                Tuple2 setting = (Tuple2) all.next();
                settings.setProperty((String) setting._1(), (String) setting._2());
            }
        }

        /** What in the plan might remember rows, so that it must not be run; null: nothing. */
        public String refusal() {
            String found = unfit(root);
            return found == null && rows().getNumPartitions() != 1 ? "more than one partition" : found;
        }

        /** How long the plan is when it is written down. */
        public long written() throws Throwable {
            final long[] length = new long[1];
            ObjectOutputStream out = new ObjectOutputStream(new OutputStream() {
                public void write(int one) {
                    length[0] += 1;
                }

                public void write(byte[] some, int from, int count) {
                    length[0] += count;
                }
            });
            out.writeObject(root);
            out.close();
            return length[0];
        }

        private static String unfit(SparkPlan node) {
            if (!node.subqueries().isEmpty()) {
                return "a subquery in " + node.nodeName();
            }
            if (node instanceof RDDScanExec) {
                return ((RDDScanExec) node).rdd() instanceof Slot ? null : "rows that are not in a slot";
            }
            if (!OPERATORS.contains(node.getClass().getName())) {
                return "the operator " + node.nodeName();
            }
            List children = JavaConverters.seqAsJavaList(node.children());
            for (int i = 0; i < children.size(); i++) {
                String found = unfit((SparkPlan) children.get(i));
                if (found != null) {
                    return found;
                }
            }
            return null;
        }

        private RDD rows() {
            if (rows == null) {
                final SparkPlan plan = root;
                rows = (RDD) session.withActive(new AbstractFunction0() {
                    public Object apply() {
                        return plan.execute();
                    }
                });
            }
            return rows;
        }

        /**
         * Leaves the result as an Arrow stream in the file in which the rows came: per slot the length of an Arrow
         * stream, and the stream. Bytes in the answer to a call would wait for acknowledgements of the network.
         */
        public synchronized void run(String name) throws Throwable {
            Path file = Paths.get(name, new String[0]);
            try {
                DataInputStream inputs = new DataInputStream(new ByteArrayInputStream(Files.readAllBytes(file)));
                for (int i = 0; i < slots.length; i++) {
                    byte[] stream = new byte[inputs.readInt()];
                    inputs.readFully(stream);
                    slots[i].fill(stream);
                }
                Files.write(file, computed(), new OpenOption[0]);
            } finally {
                for (int i = 0; i < slots.length; i++) {
                    slots[i].clear();
                }
            }
        }

        /** The rows, computed as a task computes a partition. */
        private byte[] computed() throws Throwable {
            long number = NUMBERS.getAndDecrement();
            TaskMemoryManager memory = new TaskMemoryManager(this.memory, number);
            TaskContextImpl context = new TaskContextImpl(
                0, 0, 0, number, 0, 1, memory, settings, null, TaskMetrics$.MODULE$.empty(),
                BigDecimal$.MODULE$.apply(1), (scala.collection.immutable.Map) Map$.MODULE$.empty());
            TaskContext$.MODULE$.setTaskContext(context);
            try {
                byte[] result = encoded(rows().iterator(rows().partitions()[0], context));
                context.markTaskCompleted((Option) None$.MODULE$);
                return result;
            } catch (Throwable error) {
                context.markTaskFailed(error);
                context.markTaskCompleted(new Some(error));
                throw error;
            } finally {
                TaskContext$.MODULE$.unset();
                memory.cleanUpAllAllocatedMemory();
            }
        }

        private byte[] encoded(scala.collection.Iterator rows) {
            if (!rows.hasNext()) {
                return ArrowConverters$.MODULE$.createEmptyArrowBatch(schema, "UTC", false, false);
            }
            scala.collection.Iterator batches =
                ArrowConverters$.MODULE$.toBatchWithSchemaIterator(rows, schema, 0L, 0L, "UTC", false, false);
            byte[] whole = (byte[]) batches.next();
            if (batches.hasNext()) {
                throw new IllegalStateException("more than one batch");
            }
            return whole;
        }
    }
}
