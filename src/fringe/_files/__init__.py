"""Files, object stores, records and the processes that write them."""
