"""What is known to go wrong on SM121, as rules over image, driver, checkpoint and flags."""
