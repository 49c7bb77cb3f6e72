# The product and what it needs, as a dependency of the functions. A dependency of more than 10 MB comes from OBS. The bucket also
# has the dead letters.

locals {
  bucket  = "${var.name}-${local.project_id}"
  package = var.package != "" ? var.package : "${path.module}/../../.cache/huawei/package.zip"
  code    = var.code != "" ? var.code : "${path.module}/../../.cache/huawei/functions.zip"
}

resource "huaweicloud_obs_bucket" "storage" {
  region        = var.region
  bucket        = local.bucket
  acl           = "private"
  force_destroy = true
}

resource "huaweicloud_obs_bucket_object" "package" {
  region = var.region
  bucket = huaweicloud_obs_bucket.storage.bucket
  key    = "package-${substr(filesha256(local.package), 0, 16)}.zip" # a link makes one version only
  source = local.package
}

resource "huaweicloud_fgs_dependency_version" "package" {
  region      = var.region
  name        = var.name
  runtime     = var.runtime
  link        = "https://${huaweicloud_obs_bucket.storage.bucket_domain_name}/${huaweicloud_obs_bucket_object.package.key}"
  description = "Journeyman and what it needs"
}
