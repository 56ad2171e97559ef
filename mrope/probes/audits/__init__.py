"""Audits: what a layout, an encoding, an attention and frequencies keep, measured without any weights."""
