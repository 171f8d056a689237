"""Status of the controller and its applications: types, builder, metrics, HTTP."""
