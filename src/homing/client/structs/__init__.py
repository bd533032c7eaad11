"""What the service takes and answers with.

Written by tools/make_client.py.
"""
