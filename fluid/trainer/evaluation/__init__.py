"""What is measured while training and in tests."""
