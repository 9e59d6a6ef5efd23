"""Everything compiled, fused or written for one processor, beside a plain version of the same."""
