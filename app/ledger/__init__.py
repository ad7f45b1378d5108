"""The leaf that the API and the worker share: records, keys, scripts and settings, with no web framework.

Everything that changes a record is one atomic script in Redis; this package only calls them and decodes the answers.
"""
