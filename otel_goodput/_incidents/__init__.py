"""What is wrong with the job while it runs: incidents, and what is looked at then."""
