// Where Karpenter's own CustomResourceDefinitions come from (upstream_crds.py reads them); nothing is built from it.
module journeyman.dev/upstream-crds

go 1.21

require github.com/aws/karpenter-provider-aws v1.14.1
