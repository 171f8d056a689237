"""Runnable examples of Rechannel."""
