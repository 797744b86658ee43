#include <fsdp/version.h>

#include "app/report/html.h"
#include "app/report/script.h"
#include "app/report/sections.h"
#include "app/report/style.h"

namespace fsdp::report {

namespace {

struct Part {
  const char *id, *name;
  std::string html;
};

std::string navigation(const std::vector<Part>& parts) {
  std::string html = "<nav>";
  for (const Part& part : parts)
    if (!part.html.empty()) html += std::string("<a href=\"#") + part.id + "\">" + part.name + "</a>";
  return html + "</nav>\n";
}

// The policy forbids everything that is not in the file.
std::string head(const Run& run) {
  const auto& starts = run.metrics.starts;
  const std::string model =
      starts.empty() || starts.back().model.empty() ? "Training run" : starts.back().model;
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>" + escaped(model) +
         " · " + escaped(run.folder) +
         "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'; "
         "script-src 'unsafe-inline'\">\n<style>" +
         kStyle + "</style>\n</head>\n";
}

}  // namespace

std::string page(const Run& run) {
  const std::vector<Part> parts = {{"curves", "Training", curves(run)},
                                   {"times", "Time", step_times(run)},
                                   {"memory", "Memory", memory(run)},
                                   {"communication", "Communication", traffic(run)},
                                   {"checkpoints", "Checkpoints", checkpoints(run)},
                                   {"events", "Events", events(run)},
                                   {"config", "Configuration", configuration(run)},
                                   {"environment", "Environment", environment(run)}};
  std::string html = head(run) + "<body>\n<main>\n" + header(run) + navigation(parts);
  for (const Part& part : parts) html += part.html;
  return html + "<footer>Written by fsdp.cpp " + escaped(version()) + " on " + date_text(run.now) +
         ". metrics.jsonl in the run's folder has every record.</footer>\n</main>\n<script>" + kScript +
         "</script>\n</body>\n</html>\n";
}

}  // namespace fsdp::report
