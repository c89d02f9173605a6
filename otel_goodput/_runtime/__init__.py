"""What runs in a job: the recorder and its wiring, the clock, the disk, deadlines, catching our errors."""
