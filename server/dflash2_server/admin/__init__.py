"""The admin API: the routes under /admin/api over `management.Management`, one module for each part of it.

`routes.routers()` are all of them. They know neither sessions nor pages, and change nothing by themselves.
"""
