variable "region" {
  description = "The region of the functions and of the cluster, such as cn-north-4."
  type        = string
}

variable "cluster_name" {
  description = "The cluster's name in events, logs and the API."
  type        = string
}

variable "cluster_id" {
  description = "CCE's id of the cluster, a UUID."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", var.cluster_id))
    error_message = "cluster_id is not a UUID; the cluster's page in the CCE console shows its id."
  }
}

variable "cluster_endpoint" {
  description = "The address of the API server that the functions use: public, or private, which needs vpc_id and network_id."
  type        = string
  default     = "public"

  validation {
    condition     = contains(["public", "private"], var.cluster_endpoint)
    error_message = "cluster_endpoint is public or private."
  }
}

variable "more_clusters" {
  description = "Further clusters, in the form of JOURNEYMAN_CLUSTERS in docs/settings.md."
  type        = any
  default     = []
}

variable "name" {
  description = "The start of the names of everything that is created. A second deployment in an account needs another one."
  type        = string
  default     = "journeyman"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,28}$", var.name))
    error_message = "name has 2 to 29 lower-case letters, digits and hyphens, and starts with a letter."
  }
}

variable "project_id" {
  description = "The id of the IAM project; by default that of the region's own project."
  type        = string
  default     = ""
}

variable "project_name" {
  description = "The name of the IAM project; by default the region's own project, which has the region's name."
  type        = string
  default     = ""
}

variable "settings" {
  description = "Further environment variables of all functions, from docs/settings.md: PREFERENCE_POLICY, LOG_LEVEL, BSS_ENDPOINT and others."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(var.settings) <= 11
    error_message = "settings has more than 11 entries; FunctionGraph allows a function 20 environment variables, and 9 are taken."
  }
}

variable "runtime" {
  description = "The functions' runtime. Build the package for the same one: make layer-huawei HUAWEI_PYTHON=3.10."
  type        = string
  default     = "Python3.10"
}

variable "package" {
  description = "Path of the zip archive with the product and what it needs; by default the one that make layer-huawei builds."
  type        = string
  default     = ""
}

variable "code" {
  description = "Path of the zip archive with the handlers; by default the one that make layer-huawei builds."
  type        = string
  default     = ""
}

variable "vpc_id" {
  description = "The VPC that the functions are in; empty: none. Their subnet then needs a NAT gateway, or VPC endpoints."
  type        = string
  default     = ""
}

variable "network_id" {
  description = "The network id of the functions' subnet in that VPC."
  type        = string
  default     = ""
}

variable "interruption_trigger" {
  description = "Whether CTS passes interruptions and stopped servers to the functions. False in a region whose FunctionGraph has no CTS trigger."
  type        = bool
  default     = true
}

variable "apig_instance_id" {
  description = "The id of a dedicated API gateway that serves the API and forwarders' events; empty: neither has a URL."
  type        = string
  default     = ""
}

variable "forwarder_service_account" {
  description = "namespace/name of the forwarder whose events are accepted over HTTPS; empty: none."
  type        = string
  default     = ""
}

variable "forwarder_audience" {
  description = "The audience of the forwarder's tokens."
  type        = string
  default     = "journeyman"
}
