output "functions" {
  description = "The functions' URNs."
  value       = { for name, function in huaweicloud_fgs_function.function : name => function.urn }
}

output "agencies" {
  description = "The agencies' names, for the chart's bindings of the functions' identities."
  value       = { for name, agency in huaweicloud_identity_agency.function : name => agency.name }
}

output "dead_letters" {
  description = "Where messages are that never succeeded."
  value       = "obs://${huaweicloud_obs_bucket.storage.bucket}/dead-letters"
}

output "api" {
  description = "The URL of the API and, with /events behind it, of forwarders' events; empty without a gateway."
  value       = local.gateway.sl_domain == "" ? "" : "https://${local.gateway.sl_domain}"
}
