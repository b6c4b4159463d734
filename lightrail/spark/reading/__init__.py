"""The readers of the data source: what there is, what is wanted, who reads which part."""
