"""What every benchmark uses: rows beside those of peers, servers of peers, the page cache, data."""
