# The provider reads its region and credentials from HW_REGION_NAME, HW_ACCESS_KEY and HW_SECRET_KEY; README.md beside this file.
terraform {
  required_version = ">= 1.5"
  required_providers {
    huaweicloud = {
      source  = "huaweicloud/huaweicloud"
      version = ">= 1.75.0"
    }
  }
}
