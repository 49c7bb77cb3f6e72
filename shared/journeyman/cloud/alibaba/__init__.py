"""The Alibaba Cloud adapter: ACK clusters, ECS instances."""
