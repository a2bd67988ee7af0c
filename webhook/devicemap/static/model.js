// What the document says, in the form in which it is drawn. No DOM here.
"use strict";

globalThis.koordgate = (() => {
  const GIB = 2 ** 30;
  const LOOKS = { free: "free", inParts: "parts", held: "full" }; // of a device that may take something new
  const HEALTH = {
    healthy: { word: "healthy", icon: "✓", good: true },
    unhealthy: { word: "unhealthy", icon: "✕", good: false },
    cordoned: { word: "cordoned", icon: "⊘", good: false },
    kubelet: { word: "kubelet’s", icon: "■", good: false },
    gone: { word: "gone", icon: "?", good: false },
    unread: { word: "unknown", icon: "?", good: false },
  };

  // One hue for each holder, the same in every view: it follows from the UID alone.
  function hue(text) {
    let sum = 2166136261;
    for (let at = 0; at < text.length; at++) sum = Math.imul(sum ^ text.charCodeAt(at), 16777619);
    return Math.round(((sum >>> 0) * 137.508) % 360);
  }

  function amount(value, unit) {
    if (unit === "percent") return `${value} %`;
    if (unit === "bytes") return value >= GIB / 10 || value === 0 ? `${tenths(value)} GiB` : `${Math.floor(value / 2 ** 20)} MiB`;
    return number(value);
  }

  const { format: number } = new Intl.NumberFormat("en");
  const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  // Rounded down as all commands round (in_gib of allocator/quantity.py): no part is shown as more than its card.
  const tenths = (bytes) => number(Math.floor((bytes * 10) / GIB) / 10);

  function heldOf([total, held], unit) {
    if (unit === "percent") return `${held} %`;
    if (unit === "bytes") return `${tenths(held)} / ${tenths(total)} GiB`;
    return `${number(held)} / ${number(total)}`;
  }

  // What a container has of a card's memory, and whether something keeps it to that.
  function useOf(use) {
    const words = [use.container];
    if (use.used !== null) words.push(`uses ${amount(use.used, "bytes")}`);
    if (use.limit !== null) words.push(`of at most ${amount(use.limit, "bytes")}`);
    const over = use.held > 0 && use.used !== null && use.used > Math.max(use.held, use.wanted ?? 0);
    return { text: `${words.join(" ")} (${use.state}${over ? ", more than it holds" : ""})`, bad: over || use.state === "missing" };
  }

  const usesOf = (device, holder) => (device.uses ?? []).filter((one) => one.pod === holder.label).map(useOf);

  const part = (value, total) => (total > 0 ? Math.min(100, (100 * value) / total) : value > 0 ? 100 : 0);

  // Percent of the height of a cell. What is held in part looks neither empty nor full, however small the cell is.
  function level([total, held]) {
    const exact = part(held, total);
    return exact === 0 || exact === 100 ? exact : Math.max(12, Math.min(86, exact));
  }

  function byKey(all, key) {
    const groups = new Map();
    for (const one of all) {
      const name = key(one);
      groups.set(name, [...(groups.get(name) ?? []), one]);
    }
    return [...groups];
  }

  function cpuList(text) {
    const found = [];
    for (const range of text ? text.split(",") : []) {
      const [first, last] = range.split("-").map(Number);
      for (let cpu = first; cpu <= (last ?? first); cpu++) found.push(cpu);
    }
    return found;
  }

  function readNode(raw, types) {
    const holders = raw.holders.map((one) => ({
      ...one,
      key: `${one.kind === "claim" ? "claim" : "pod"}:${one.uid}`,
      label: `${one.namespace}/${one.name}`,
      short: one.namespace === "default" ? one.name : `${one.namespace}/${one.name}`,
      text: `${one.namespace}/${one.name}\n${one.uid}`.toLowerCase(),
      hue: hue(one.uid),
    }));
    const devices = raw.devices.map((one, at) => ({
      ...one,
      at,
      name: `${one.type} ${one.minor}`,
      look: HEALTH[one.health]?.good ? (LOOKS[one.state] ?? "full") : "bad",
      resources: types[one.type]?.resources ?? [],
      shares: one.shares.filter((share) => !holders[share.holder].within), // else the reservation Pod's share has it too
      text: [one.type, one.model, one.id, one.bus, one.pcie, one.health, ...one.shares.map((share) => holders[share.holder].text)]
        .join("\n").toLowerCase(),
    }));
    const words = [raw.name.toLowerCase(), raw.blocked && "blocked", ...devices.map((one) => one.text), ...holders.map((one) => one.text)];
    return {
      ...raw,
      holders,
      devices,
      cpus: raw.cpus && readCpus(raw.cpus, holders),
      text: words.filter(Boolean).join("\n"),
      mixed: new Set(devices.filter((one) => one.type === devices[0].type).map((one) => one.model)).size > 1,
      kinds: byKey(devices, (one) => one.type),
      has: summary(devices, raw.cpus),
      sums: sums(devices),
      bad: devices.filter((one) => one.look === "bad").length,
    };
  }

  // Whose each CPU is. An owner outranks every pool: a Pod's CPU is always drawn in its colour.
  function readCpus(raw, holders) {
    const whose = new Map();
    for (const cpu of cpuList(raw.shared)) whose.set(cpu, { pool: "shared" });
    for (const cpu of cpuList(raw.reserved)) whose.set(cpu, { pool: "reserved" });
    for (const one of raw.own) {
      for (const cpu of cpuList(one.cpus)) whose.set(cpu, { pool: one.pool, holder: holders[one.holder] });
    }
    const zones = raw.zones.map((zone) => {
      const cores = zone.cores.map(cpuList);
      const count = { own: 0, shared: 0, reserved: 0 };
      for (const cpu of cores.flat()) {
        const pool = whose.get(cpu)?.pool ?? "reserved";
        count[pool in count ? pool : "own"] += 1;
      }
      return { ...zone, cores, count };
    });
    return { ...raw, zones, whose };
  }

  const plainModel = (model) => model.replace(/^NVIDIA[- ]/, "");

  function summary(devices, cpus) {
    const counted = new Map();
    for (const one of devices) {
      const name = one.type === "gpu" ? plainModel(one.model) || "gpu" : one.type;
      counted.set(name, (counted.get(name) ?? 0) + 1);
    }
    const texts = [...counted].map(([name, count]) => `${count} × ${name}`);
    if (cpus) texts.push(`${cpus.zones.flatMap((zone) => zone.cores.flatMap(cpuList)).length} CPUs`);
    return texts.join(" · ");
  }

  // What is held of the first type's resources, summed over its devices.
  function sums(devices) {
    const type = devices[0]?.type;
    const found = (devices[0]?.resources ?? []).map((resource) => ({ ...resource, total: 0, held: 0 }));
    for (const one of devices) {
      if (one.type !== type) continue;
      one.amounts.forEach(([total, held], at) => {
        found[at].total += total;
        found[at].held += held;
      });
    }
    return found;
  }

  const terms = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text, wanted) => wanted.every((term) => text.includes(term));

  function holdingsOf(nodes, key) {
    const found = [];
    for (const node of nodes) {
      const place = node.holders.findIndex((one) => one.key === key);
      if (place < 0) continue;
      const shares = node.devices.flatMap((device) => device.shares.filter((one) => one.holder === place).map((share) => ({ device, share })));
      const cpus = node.cpus?.own.filter((one) => one.holder === place) ?? [];
      found.push({ node, holder: node.holders[place], shares, cpus });
    }
    return found;
  }

  // What a search finds: the nodes, the places of the devices to be marked on each, and who holds something of these.
  // A word that is part of a node's name finds the node as a whole and marks none of its devices.
  function find(nodes, wanted) {
    const found = { nodes: [], devices: 0, marks: new Map(), holders: [] };
    const named = new Map();
    const beside = new Map(); // those that hold some of a device that was found by other words
    const count = (all, holder, devices) => {
      const one = all.get(holder.key) ?? { holder, devices: 0, nodes: 0 };
      all.set(holder.key, { holder, devices: one.devices + devices, nodes: one.nodes + 1 });
    };
    for (const node of nodes) {
      if (!matches(node.text, wanted)) continue;
      found.nodes.push(node);
      const rest = wanted.filter((term) => !node.name.toLowerCase().includes(term));
      const devices = node.devices.filter((one) => matches(one.text, rest));
      found.devices += devices.length;
      if (rest.length) found.marks.set(node.name, devices.map((one) => one.at));
      if (!wanted.length) continue;
      node.holders.forEach((holder, place) => {
        const held = devices.filter((one) => one.shares.some((share) => share.holder === place)).length;
        if (matches(holder.text, rest)) count(named, holder, held);
        else if (held) count(beside, holder, held);
      });
    }
    found.holders = [...(named.size ? named : beside).values()].sort((a, b) => (a.holder.label < b.holder.label ? -1 : 1));
    return found;
  }

  // The places of a node's devices that stand out: those of the holder, or else those that were searched for.
  function marked(node, lit, found) {
    if (!lit) return found.marks.get(node.name) ?? [];
    const place = node.holders.findIndex((one) => one.key === lit);
    return place < 0 ? [] : node.devices.filter((one) => one.shares.some((share) => share.holder === place)).map((one) => one.at);
  }

  const toNode = (name) => `#/${encodeURIComponent(name)}`; // the address of a node within the page; "" for all of them

  function since(seconds) {
    if (seconds < 90) return `${seconds} s`;
    return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
  }

  return { HEALTH, amount, byKey, counted, find, heldOf, holdingsOf, level, marked, matches, number, part, plainModel, readNode, since, terms, toNode, usesOf };
})();
