"""Work on labels away from the gateway: train, measure, certify, simulate."""
