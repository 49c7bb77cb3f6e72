# The functions, their environment, their triggers, and what FunctionGraph does with messages that fail.

data "huaweicloud_account" "current" {}

data "huaweicloud_identity_projects" "current" {
  name = local.project_name
}

locals {
  project_name = var.project_name != "" ? var.project_name : var.region
  project_id   = var.project_id != "" ? var.project_id : data.huaweicloud_identity_projects.current.projects[0].id

  # A message is an asynchronous invocation of a step's function, whose URN is this and the step's name.
  function_urn_prefix = "urn:fss:${var.region}:${local.project_id}:function:default:${var.name}-"

  clusters = concat([{
    name   = var.cluster_name
    region = var.region
    access = {
      kind      = "cce"
      clusterId = var.cluster_id
      projectId = local.project_id
      endpoint  = var.cluster_endpoint
    }
  }], var.more_clusters)

  environment = merge({
    JOURNEYMAN_CLUSTERS            = jsonencode(local.clusters)
    JOURNEYMAN_FUNCTION_URN_PREFIX = local.function_urn_prefix
    JOURNEYMAN_MAX_HOPS            = "240" # a chain of requeues that never ends costs a run every two seconds
    HUAWEICLOUD_SDK_DOMAIN_ID      = data.huaweicloud_account.current.id
    POWERTOOLS_SERVICE_NAME        = "journeyman"
    POWERTOOLS_METRICS_NAMESPACE   = "Journeyman"
    POWERTOOLS_TRACE_DISABLED      = "true" # X-Ray is AWS's
  }, var.settings)

  forwarder = {
    FORWARDER_SERVICE_ACCOUNT = var.forwarder_service_account
    FORWARDER_AUDIENCE        = var.forwarder_audience
  }

  user_data = {
    for name, function in local.functions :
    name => jsonencode(name == "events" ? merge(local.environment, local.forwarder) : local.environment)
  }

  # `global` names policies of services that have no regions.
  functions = {
    provision = {
      description   = "Provision nodes for unschedulable pods"
      handler       = "provision.handler"
      initializer   = "provision.initialize"
      memory        = 2048 # for the solver: FunctionGraph gives CPU in proportion
      timeout       = 120
      max_instances = "100"
      policies      = ["connect", "invoke", "catalogue", "node-classes", "launch"]
      global        = ["dead-letters"]
    }
    terminate = {
      description   = "Drain nodes, terminate instances, collect garbage"
      handler       = "terminate.handler"
      initializer   = "terminate.initialize"
      memory        = 1024
      timeout       = 60
      max_instances = "100"
      policies      = ["connect", "invoke", "terminate"]
      global        = ["dead-letters"]
    }
    consolidate = {
      description   = "Delete or replace nodes within disruption budgets"
      handler       = "consolidate.handler"
      initializer   = "consolidate.initialize"
      memory        = 2048
      timeout       = 180
      max_instances = "100"
      policies      = ["connect", "invoke", "catalogue", "node-classes", "launch"] # replacements
      global        = ["prices", "dead-letters"]
    }
    interrupt = {
      description   = "Delete the NodeClaims of interrupted instances"
      handler       = "interrupt.handler"
      initializer   = "interrupt.initialize"
      memory        = 1024
      timeout       = 60
      max_instances = "100"
      policies      = ["connect", "invoke", "instances"] # an interrupted instance may not be in its NodeClaim's status yet
      global        = ["dead-letters"]
    }
    sweep = {
      description   = "Start the steps that are due, each minute"
      handler       = "sweep.handler"
      initializer   = "sweep.initialize"
      memory        = 512
      timeout       = 50
      max_instances = "100"
      policies      = ["connect", "invoke"]
      global        = []
    }
    api = {
      description   = "HTTP API - clusters, the current plan, metrics, requeue"
      handler       = "api.handler"
      initializer   = "api.initialize"
      memory        = 2048
      timeout       = 29
      max_instances = "100"
      policies      = ["connect", "invoke", "catalogue"]
      global        = []
    }
    # a function of its own, since anyone can call it: the clusters authenticate its senders
    events = {
      description   = "Receive the events of forwarders, which the clusters authenticate"
      handler       = "api.events_handler"
      initializer   = "api.initialize"
      memory        = 1024
      timeout       = 29
      max_instances = "2"
      policies      = ["connect", "invoke"]
      global        = []
    }
    # FunctionGraph cannot delay a message: an instance of this function waits for it, at most a minute
    delay = {
      description   = "Wait until messages are due, and send them to their steps"
      handler       = "delay.handler"
      initializer   = "delay.initialize"
      memory        = 128
      timeout       = 90
      max_instances = "40" # the quota of instances is for the steps
      policies      = ["invoke"]
      global        = ["dead-letters"]
    }
  }
}

resource "huaweicloud_fgs_function" "function" {
  for_each = local.functions

  region                = var.region
  name                  = "${var.name}-${each.key}"
  description           = each.value.description
  app                   = "default"
  functiongraph_version = "v2"
  runtime               = var.runtime
  code_type             = "zip"
  code_filename         = "functions.zip"
  func_code             = filebase64(local.code)
  depend_list           = [huaweicloud_fgs_dependency_version.package.version_id]
  handler               = each.value.handler
  initializer_handler   = each.value.initializer
  initializer_timeout   = 60
  agency                = huaweicloud_identity_agency.function[each.key].name
  memory_size           = each.value.memory
  timeout               = each.value.timeout
  max_instance_num      = each.value.max_instances
  user_data             = local.user_data[each.key]
  vpc_id                = var.vpc_id != "" ? var.vpc_id : null
  network_id            = var.network_id != "" ? var.network_id : null

  lifecycle {
    precondition {
      condition     = length(local.user_data[each.key]) <= 4096
      error_message = "The environment has more than 4096 characters, which FunctionGraph refuses; register fewer clusters, or shorten settings."
    }
    precondition {
      condition     = var.cluster_endpoint == "public" || var.vpc_id != ""
      error_message = "The private address of the API server can be reached from its VPC only; set vpc_id and network_id."
    }
  }
}

# What fails is invoked three more times. What never succeeds becomes an object of the bucket: a dead letter.
resource "huaweicloud_fgs_async_invoke_configuration" "function" {
  for_each = toset(["provision", "terminate", "consolidate", "interrupt", "delay"])

  region                         = var.region
  function_urn                   = huaweicloud_fgs_function.function[each.key].urn
  max_async_event_age_in_seconds = 86400
  max_async_retry_attempts       = 3

  on_failure {
    destination = "OBS"
    param = jsonencode({
      bucket  = huaweicloud_obs_bucket.storage.bucket
      prefix  = "/dead-letters"
      expires = 14
    })
  }
}

resource "huaweicloud_fgs_async_invoke_configuration" "sweep" { # the next sweep does the same work
  region                         = var.region
  function_urn                   = huaweicloud_fgs_function.function["sweep"].urn
  max_async_event_age_in_seconds = 60
  max_async_retry_attempts       = 0
}

# --- triggers

resource "huaweicloud_fgs_function_trigger" "sweep" {
  region       = var.region
  function_urn = huaweicloud_fgs_function.function["sweep"].urn
  type         = "TIMER"
  status       = "ACTIVE"
  event_data = jsonencode({
    name          = "every-minute"
    schedule_type = "Rate"
    schedule      = "1m"
    user_event    = jsonencode({ source = "sweep", cluster = "*", reason = "every minute" })
  })
}

resource "huaweicloud_fgs_function_trigger" "interruption" { # ECS reclaims a Spot server, or a server stops or goes for any reason
  count = var.interruption_trigger ? 1 : 0

  region       = var.region
  function_urn = huaweicloud_fgs_function.function["interrupt"].urn
  type         = "CTS"
  status       = "ACTIVE" # CTS triggers cannot be disabled
  event_data = jsonencode({
    name = "interruption"
    operations = [
      "ECS:server:interruptServer",
      "ECS:ecs:deleteServer",
      "ECS:ecs:deleteServerV2",
      "ECS:ecs:deleteServerV21",
      "ECS:ecs:deleteVmByNative",
      "ECS:ecs:stopServer",
    ]
  })
}

resource "huaweicloud_apig_group" "api" {
  count = var.apig_instance_id != "" ? 1 : 0

  region      = var.region
  instance_id = var.apig_instance_id
  name        = replace(var.name, "-", "_")
  description = "Journeyman"
}

resource "huaweicloud_fgs_function_trigger" "api" { # its requests are signed with the caller's IAM credentials
  count = var.apig_instance_id != "" ? 1 : 0

  region       = var.region
  function_urn = huaweicloud_fgs_function.function["api"].urn
  type         = "DEDICATEDGATEWAY"
  status       = "ACTIVE"
  event_data   = jsonencode(merge(local.gateway, { name = "api", path = "/", req_method = "ANY", auth = "IAM" }))
}

resource "huaweicloud_fgs_function_trigger" "events" {
  count = var.apig_instance_id != "" ? 1 : 0

  region       = var.region
  function_urn = huaweicloud_fgs_function.function["events"].urn
  type         = "DEDICATEDGATEWAY"
  status       = "ACTIVE"
  event_data   = jsonencode(merge(local.gateway, { name = "events", path = "/events", req_method = "POST", auth = "NONE" }))
}

locals {
  gateway_group = one(huaweicloud_apig_group.api[*].id)
  gateway = {
    type        = 1
    protocol    = "HTTPS"
    match_mode  = "SWA"
    instance_id = var.apig_instance_id
    group_id    = local.gateway_group
    env_id      = "DEFAULT_ENVIRONMENT_RELEASE_ID"
    env_name    = "RELEASE"
    sl_domain   = local.gateway_group == null ? "" : "${local.gateway_group}.apig.${var.region}.huaweicloudapis.com"
    func_info   = { timeout = 30000 }
  }
}
