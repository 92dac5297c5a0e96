#include "server/admission.h"

#include <algorithm>

namespace moesaic::server {

// The newest request that waits of the client with the most generations, if these are more than so many; of
// equal clients the one whose request is the newest. client is null where there is none.
Admission::Victim Admission::victim(const Clients& clients, int more_than) const {
  Victim found;
  int most = more_than;
  for (const auto& [name, client] : clients) {
    const auto newest = std::find_if(client.requests.rbegin(), client.requests.rend(),
                                     [](const auto& request) { return !request.second.begun; });
    if (newest == client.requests.rend() || client.generations < most) continue;
    if (client.generations == most && (found.client == nullptr || newest->first < found.id)) continue;
    most = client.generations;
    found = {&name, newest->first, newest->second.left};
  }
  return found;
}

void Admission::remove(Clients& clients, const std::string& client, uint64_t id) {
  const auto at = clients.find(client);
  const auto request = at->second.requests.find(id);
  at->second.generations -= request->second.left;
  at->second.requests.erase(request);
  if (at->second.requests.empty()) clients.erase(at);
}

// Nothing is dropped unless that makes enough room.
Admission::Decision Admission::admit(const std::string& client, uint64_t id, int generations) {
  Decision decision;
  int all = all_ + generations;
  Clients changed;
  if (all > most_) changed = clients_;
  const auto own = clients_.find(client);
  const int own_then = generations + (own == clients_.end() ? 0 : own->second.generations);
  // A request of more generations than there is room for is taken where it is the only one: waiting would not
  // help it.
  while (all > most_ && all > generations) {
    const Victim next = victim(changed, own_then);
    if (next.client == nullptr || *next.client == client) return {};
    all -= next.generations;
    decision.dropped.push_back(next.id);
    remove(changed, std::string(*next.client), next.id);
  }
  if (!decision.dropped.empty()) clients_ = std::move(changed);
  Client& c = clients_[client];
  c.generations += generations;
  c.requests[id].left = generations;
  all_ = all;
  decision.admitted = true;
  return decision;
}

void Admission::begun(const std::string& client, uint64_t id) {
  const auto at = clients_.find(client);
  if (at == clients_.end()) return;
  const auto request = at->second.requests.find(id);
  if (request != at->second.requests.end()) request->second.begun = true;
}

void Admission::ended(const std::string& client, uint64_t id) {
  const auto at = clients_.find(client);
  if (at == clients_.end()) return;
  const auto request = at->second.requests.find(id);
  if (request == at->second.requests.end()) return;
  --all_;
  --at->second.generations;
  if (--request->second.left == 0) remove(clients_, client, id);
}

}  // namespace moesaic::server
