"""Shows that the auditor is right: planted faults, coverage, power, and peers."""
