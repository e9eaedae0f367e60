"""Where the files of a lake are: a folder or an object store."""
