"""How a process reaches a cluster: EKS, ACK, CCE, a kubeconfig, or from inside the cluster. Each makes a `Connection`."""
