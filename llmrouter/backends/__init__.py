"""Where answers come from: replicas, pools, breakers, probes, runners."""
