"""Link inside the Spark driver: observes, reconciles and steers. It never fails a query."""
