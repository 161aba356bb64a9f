"""What people read and type: numbers, names, tables, HTML and progress."""
