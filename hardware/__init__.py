"""Facts about machines: accelerators, servers, clusters and measured calibrations. Imports nothing of the upper floors."""
