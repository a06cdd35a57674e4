"""What people look at: the tour's chapters, tables and pages."""
