"""The AWS cloud provider: EC2NodeClass status, instance types, prices, launch, list, terminate.

`provider.AwsCloudProvider` implements `ports.CloudProvider`; the other modules serve it. SDK clients come from
`settings.Clients`, the time from `ports.Clock`; `aws_errors.translated` turns botocore's errors into ours.
"""
