"""Access to the Spark driver: the bounded py4j client, the calls, and hooks made of Java classes."""
