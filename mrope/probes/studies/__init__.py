"""Studies: small models trained from nothing on one budget, several seeds each, to test a published claim."""
