"""Runs on a rented instance: starts the trainer, keeps its work in the bucket, and ends the instance."""
