"""What `Client` is composed of: producing, reading, answering, operating."""
