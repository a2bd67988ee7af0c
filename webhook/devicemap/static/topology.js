// A node's devices in their NUMA nodes and PCIe roots, and the NVLink connections between them, as a drawing.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { HEALTH, byKey, level } = koordgate;
  const BOX = 50;
  const GAP = 8;
  const PAD = 9;
  const HIGH = 32; // of a box, below its name
  const TOP = 54;

  function lay(node) {
    const numa = (one) => one.numa ?? Infinity;
    const ordered = [...node.devices].sort((a, b) => numa(a) - numa(b) || (a.pcie < b.pcie ? -1 : a.pcie > b.pcie ? 1 : 0) || a.at - b.at);
    const places = new Map();
    const zones = [];
    const roots = [];
    let x = 1;
    for (const [zone, inside] of byKey(ordered, (one) => one.numa)) {
      const left = x;
      x += PAD;
      for (const [root, devices] of byKey(inside, (one) => one.pcie)) {
        const from = x;
        x += root ? PAD - 2 : 0;
        for (const one of devices) {
          places.set(one.at, x);
          x += BOX + GAP;
        }
        x += (root ? PAD - 2 : 0) - GAP;
        if (root) roots.push({ root, x: from, width: x - from });
        x += GAP;
      }
      x += PAD - GAP;
      zones.push({ zone, x: left, width: x - left });
      x += GAP;
    }
    return { places, zones, roots, width: x - GAP + 1 };
  }

  // Whether NVLink connects every pair of the linked devices by as many lanes, as through switches.
  function uniform(links) {
    const linked = new Set(links.flatMap(([a, b]) => [a, b]));
    const every = links.length === (linked.size * (linked.size - 1)) / 2;
    return linked.size > 2 && every && links.every((one) => one[2] === links[0][2]) ? [...linked] : null;
  }

  // As much of a root's name as there is room for: its end, which differs.
  function brief(root, wide) {
    const text = root.replace(/^pci/, "");
    const most = Math.floor((wide - 8) / 5.4);
    return text.length > most ? text.slice(-most) : text;
  }

  function words(node, all) {
    const texts = byKey(node.devices, (one) => one.numa).map(([zone, devices]) => {
      const roots = byKey(devices, (one) => one.pcie).map(([root, inside]) => `${inside.map((one) => one.name).join(", ")}${root ? ` on PCIe root ${root}` : ""}`);
      return `${zone === null ? "On no NUMA node" : `NUMA node ${zone}`}: ${roots.join("; ")}.`;
    });
    if (all) texts.push(`NVLink connects each pair of ${all.length} devices by ${node.links[0][2]} lanes.`);
    else for (const [a, b, lanes] of node.links) texts.push(`NVLink: ${node.devices[a].name} and ${node.devices[b].name}, ${lanes} lanes.`);
    return texts.join(" ");
  }

  function wire(node, places, all) {
    const middle = (at) => places.get(at) + BOX / 2;
    const y = TOP + HIGH;
    if (all) {
      const xs = all.map(middle).sort((a, b) => a - b);
      return html`<g class="wire">
        ${xs.map((x) => html`<line x1=${x} x2=${x} y1=${y} y2=${y + 26} />`)}
        <line class="bus" x1=${xs[0] - 8} x2=${xs.at(-1) + 8} y1=${y + 26} y2=${y + 26} />
        <text x=${xs[0] - 8} y=${y + 42}>NVLink, each pair ${node.links[0][2]} lanes</text>
      </g>`;
    }
    return html`<g class="wire">
      ${node.links.map(([a, b, lanes]) => {
        const [from, to] = [middle(a), middle(b)].sort((one, other) => one - other);
        const depth = y + 14 + Math.min(46, (to - from) / 5);
        return html`<path d=${`M${from} ${y} C${from} ${depth} ${to} ${depth} ${to} ${y}`} style=${{ strokeWidth: 1 + Math.min(lanes, 18) / 6 }}>
          <title>${`${node.devices[a].name} – ${node.devices[b].name}: ${lanes} lanes`}</title>
        </path>`;
      })}
      <text x=${2} y=${y + 58}>NVLink; thicker lines have more lanes</text>
    </g>`;
  }

  function Topology({ node, marks }) {
    const { places, zones, roots, width } = lay(node);
    const all = uniform(node.links);
    const height = TOP + HIGH + (node.links.length ? (all ? 50 : 64) : 12);
    return html`<div class="scroll" tabindex="0" role="group" aria-label=${`Connections of ${node.name}`}>
      <svg role="img" aria-label=${words(node, all)} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
        ${zones.map(({ zone, x, width: wide }) => html`
          <rect class="zone" x=${x} y="1" width=${wide} height=${TOP + HIGH + 7} rx="6" />
          <text x=${x + 8} y="15">${zone === null ? "no NUMA" : `NUMA ${zone}`}</text>`)}
        ${roots.map(({ root, x, width: wide }) => html`
          <rect class="root" x=${x} y="22" width=${wide} height=${TOP + HIGH - 18} rx="4"><title>${`PCIe root ${root}`}</title></rect>
          <text class="small" x=${x + 5} y="35">${brief(root, wide)}</text>`)}
        ${node.links.length > 0 && wire(node, places, all)}
        ${node.devices.map((one) => {
          const x = places.get(one.at);
          const wide = BOX / one.amounts.length;
          return html`<g class=${`box ${one.look}${marks.includes(one.at) ? " lit" : ""}`}>
            <rect class="empty" x=${x} y=${TOP} width=${BOX} height=${HIGH} rx="3" />
            ${one.amounts.map((each, at) => html`<rect class="fill" x=${x + at * wide} width=${wide} y=${TOP + HIGH * (1 - level(each) / 100)} height=${(HIGH * level(each)) / 100} />`)}
            <rect class="edge" x=${x} y=${TOP} width=${BOX} height=${HIGH} rx="3" />
            <text x=${x + BOX / 2} y=${TOP - 5} text-anchor="middle">${one.type.slice(0, 7)} ${one.minor}</text>
            <title>${`${one.name}, ${HEALTH[one.health]?.word ?? one.health}`}</title>
          </g>`;
        })}
      </svg>
    </div>`;
  }

  Object.assign(koordgate, { Topology });
})();
