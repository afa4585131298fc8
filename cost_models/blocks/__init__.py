"""Blocks of a decoder: each turns the sizes of one rank into ops."""
