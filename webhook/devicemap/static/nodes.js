// Nodes with all that they have: a few of them one below the other, or the one that was chosen in the overview.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useLayoutEffect, useRef } = preactHooks;
  const { Card, Cpus, Topology, classes, marked, part, toNode } = koordgate;

  function Head({ node, children }) {
    return html`<h2 class="nodehead" tabindex="-1">
      <span class="nodename">${children}</span>
      <span class="quiet">${node.has}</span>
      ${node.bad > 0 && html`<span class="health bad">✕ ${node.bad} not usable</span>`}
      <span class="sums">${node.sums.map((one) => html`<span class="sum">
        <span>${one.word}</span><span class="bar" aria-hidden="true"><i class="held" style=${{ width: `${part(one.held, one.total)}%` }}></i></span>
        <span class="number">${Math.round(part(one.held, one.total))} %</span></span>`)}</span>
    </h2>`;
  }

  function Node({ node, found, pods, children }) {
    const marks = marked(node, pods.lit, found);
    return html`<section class=${classes("node", node.blocked && "blocked")} aria-label=${`Node ${node.name}`}>
      <${Head} node=${node}>${children}<//>
      ${node.blocked && html`<p class="why">${node.blocked}</p>`}
      ${node.undelivered && html`<p class="why">${node.undelivered}</p>`}
      ${node.devices.length > 0 && html`<${Topology} node=${node} marks=${marks} />`}
      <div class="cards">${node.devices.map((one) => html`<${Card} key=${one.type + one.id} node=${node} one=${one} marked=${marks.includes(one.at)} pods=${pods} />`)}</div>
      ${node.cpus && html`<${Cpus} node=${node} pods=${pods} />`}
    </section>`;
  }

  const Nodes = ({ found, pods }) => found.nodes.map((node) => html`<${Node} key=${node.name} node=${node} found=${found} pods=${pods}>
    <a href=${toNode(node.name)}>${node.name}</a><//>`);

  // The node that was chosen. `device` is the place of the device to which the focus goes; null for the node itself.
  function Zoomed({ name, node, found, pods, device, loading }) {
    const box = useRef();
    useLayoutEffect(() => {
      scrollTo(0, 0);
      (box.current.querySelectorAll(".card")[device ?? -1] ?? box.current.querySelector("h2"))?.focus();
    }, [name]);
    return html`<div ref=${box}>
      <nav class="path" aria-label="Breadcrumb"><a href=${toNode("")}>All nodes</a> <span aria-hidden="true">›</span> <span aria-current="page">${name}</span></nav>
      ${node ? html`<${Node} node=${node} found=${found} pods=${pods}>${name}<//>` : html`<p class="quiet">${loading ? "Loading…" : "This node is not there, or has nothing to give any more."}</p>`}
    </div>`;
  }

  Object.assign(koordgate, { Nodes, Zoomed });
})();
