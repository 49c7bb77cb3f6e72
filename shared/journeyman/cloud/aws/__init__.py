"""AWS: EC2NodeClasses resolved, instance types and prices read, instances launched through CreateFleet, listed, ended.

`provider.AwsCloudProvider` is the `ports.CloudProvider`; everything else here serves it. SDK clients are handed in
(`settings.Clients`), the time comes from `ports.Clock`, and botocore's errors end in `errors.translated`.
"""
