"""The version of the client, told to the service with each request."""

__version__ = "0.1.0"
