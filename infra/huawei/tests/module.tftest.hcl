# Applies the module to a mocked provider: terraform -chdir=infra/huawei init && terraform -chdir=infra/huawei test
mock_provider "huaweicloud" {
  mock_data "huaweicloud_account" {
    defaults = { id = "d0000000000000000000000000000001" }
  }
  mock_data "huaweicloud_identity_projects" {
    defaults = { projects = [{ id = "0a1b2c3d4e5f60718293a4b5c6d7e8f9", name = "cn-north-4", enabled = true, description = "" }] }
  }
}

variables {
  region       = "cn-north-4"
  cluster_name = "demo"
  cluster_id   = "00000000-0000-4000-8000-000000000001"
  package      = "versions.tf" # any file
  code         = "versions.tf"
}

run "defaults" {
  assert {
    condition     = length(huaweicloud_fgs_function.function) == 8
    error_message = "There is a function for each step, and api, events and delay."
  }
  assert {
    condition     = length(huaweicloud_fgs_function_trigger.events) == 0
    error_message = "Without a gateway, nobody outside can send events."
  }
}

run "gateway" {
  variables {
    apig_instance_id     = "apig"
    interruption_trigger = false
    settings             = { LOG_LEVEL = "debug" }
  }

  assert {
    condition     = jsondecode(huaweicloud_fgs_function_trigger.api[0].event_data).auth == "IAM"
    error_message = "Requests to the API are signed."
  }
  assert {
    condition     = length(huaweicloud_fgs_function_trigger.interruption) == 0
    error_message = "The CTS trigger can be left out."
  }
}

run "private_endpoint_without_vpc" {
  command = plan

  variables {
    cluster_endpoint = "private"
  }

  expect_failures = [huaweicloud_fgs_function.function]
}

run "cluster_id_that_is_no_uuid" {
  command = plan

  variables {
    cluster_id = "demo"
  }

  expect_failures = [var.cluster_id]
}
