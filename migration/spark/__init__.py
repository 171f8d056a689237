"""Access to the Spark driver: the bounded py4j client, the calls, and hooks in its JVM."""
