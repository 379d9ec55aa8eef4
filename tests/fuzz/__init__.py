"""Random compositions, sets and files, by public names only: few in the quick suite, many in the slow one."""
