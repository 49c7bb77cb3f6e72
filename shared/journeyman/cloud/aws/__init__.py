"""The AWS cloud provider: EC2NodeClass status, instance types, prices, launch, list, terminate.

`provider.AwsCloudProvider` implements `ports.CloudProvider` with the other modules. `aws_settings.Clients` creates SDK
clients, and `aws_errors.translated` turns botocore's errors into `journeyman.errors`.
"""
