# An agency of its own for each function. IAM's policies know single functions and buckets as resources; of CCE, ECS and VPC they
# know only the project, so the functions are limited to it, and limit themselves to their clusters.

locals {
  policies = {
    connect = {
      type        = "XA"
      description = "Get client certificates and networks of clusters"
      statements  = [{ Effect = "Allow", Action = ["cce:cluster:get", "cce:cluster:generateClientCredential"] }]
    }
    invoke = {
      type        = "XA"
      description = "Send messages to the steps"
      statements = [{
        Effect   = "Allow"
        Action   = ["functiongraph:function:invokeAsync"]
        Resource = ["FUNCTIONGRAPH:*:*:function:default/${var.name}-*"]
      }]
    }
    catalogue = {
      type        = "XA"
      description = "Read flavors, zones and stock"
      statements  = [{ Effect = "Allow", Action = ["ecs:cloudServerFlavors:get", "ecs:cloudServers:list"] }]
    }
    node-classes = {
      type        = "XA"
      description = "Find the subnets that CCENodeClasses select"
      statements  = [{ Effect = "Allow", Action = ["vpc:subnets:get"] }]
    }
    launch = {
      type        = "XA"
      description = "Create nodes, and follow their creation"
      statements  = [{ Effect = "Allow", Action = ["cce:node:create", "cce:node:list", "cce:job:get"] }]
    }
    terminate = {
      type        = "XA"
      description = "Delete nodes, and read their servers' maintenance"
      statements = [{
        Effect = "Allow"
        Action = [
          "cce:node:delete",
          "cce:node:get",
          "cce:node:list",
          "cce:job:get",
          "ecs:cloudServers:list",
          "ecs:instanceScheduledEvents:list",
        ]
      }]
    }
    instances = {
      type        = "XA"
      description = "Read which cluster a server was created for"
      statements  = [{ Effect = "Allow", Action = ["cce:node:list", "cce:job:get", "ecs:cloudServers:list"] }]
    }
    network = {
      type        = "XA"
      description = "Let FunctionGraph connect a function to its VPC"
      statements = [{
        Effect = "Allow"
        Action = ["vpc:ports:create", "vpc:ports:delete", "vpc:ports:get", "vpc:subnets:get", "vpc:vpcs:get"]
      }]
    }
    prices = {
      type        = "AX"
      description = "Read the account's own prices"
      statements  = [{ Effect = "Allow", Action = ["bss:discount:view"] }]
    }
    dead-letters = {
      type        = "AX"
      description = "Let FunctionGraph store messages that never succeed"
      statements = [{
        Effect   = "Allow"
        Action   = ["obs:object:PutObject"]
        Resource = ["obs:*:*:object:${local.bucket}/*"]
      }]
    }
  }

  vpc_policies = var.vpc_id != "" ? ["network"] : []
}

resource "huaweicloud_identity_role" "policy" {
  for_each = local.policies

  name        = "${var.name}-${each.key}"
  description = each.value.description
  type        = each.value.type
  policy      = jsonencode({ Version = "1.1", Statement = each.value.statements })
}

resource "huaweicloud_identity_agency" "function" {
  for_each = local.functions

  name                   = "${var.name}-${each.key}"
  description            = "What the function ${var.name}-${each.key} may do"
  delegated_service_name = "op_svc_cff" # FunctionGraph
  duration               = "FOREVER"
  domain_roles           = [for policy in each.value.global : huaweicloud_identity_role.policy[policy].name]

  project_role {
    project = local.project_name
    roles   = [for policy in concat(each.value.policies, local.vpc_policies) : huaweicloud_identity_role.policy[policy].name]
  }
}
