"""Graph IR -> programs of the virtual machine, with straight runs of kernels carved out as segments."""
