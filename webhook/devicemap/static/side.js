// What stands beside the nodes: the Pod that was picked, the Pods that wait, and signing in.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useEffect, useRef, useState } = preactHooks;
  const { Holder, amount, counted, holdingsOf, since, toNode, usesOf } = koordgate;
  const MOST = 30; // holders that a search lists

  function Picked({ nodes, pods, find }) {
    if (!pods.picked) return null;
    const held = holdingsOf(nodes, pods.picked);
    const holder = held[0]?.holder;
    return html`<section class="panel" aria-labelledby="picked">
      <h2 id="picked">${holder ? holder.label : "Nothing is held any more"}</h2>
      ${holder && html`<p class="quiet">${holder.kind === "claim" ? "ResourceClaim" : "Pod"} ${holder.uid}</p>`}
      ${holder?.note && html`<p>${holder.note}</p>`}
      ${held.map(({ node, shares, cpus, holder: here }) => html`<h3><a href=${toNode(node.name)}>${node.name}</a></h3>
        <ul class="plain">
          ${shares.map(({ device, share }) => html`<li><b>${device.type} ${device.minor}</b> ${device.resources.map((resource, at) =>
            `${resource.word} ${amount(share.amounts[at], resource.unit)}`).join(", ")}
            ${share.containers.length > 0 && html` <span class="quiet">in ${share.containers.join(", ")}</span>`}
            ${usesOf(device, here).map((use) => html`<p class=${use.bad ? "why" : "quiet"}>${use.text}</p>`)}</li>`)}
          ${cpus.map((one) => html`<li><b>CPUs</b> ${one.cpus} <span class="quiet">${one.pool.toUpperCase()}</span></li>`)}
          ${here.numa.length > 0 && html`<li><b>NUMA</b> ${here.numa.join(", ")}</li>`}
        </ul>`)}
      <p class="buttons">
        ${holder && html`<button type="button" onClick=${() => find(holder.label)}>Show its nodes only</button>`}
        <button type="button" onClick=${() => pods.pick("")}>Close</button>
      </p>
    </section>`;
  }

  function Panel({ title, count, children }) {
    const [open, setOpen] = useState(null);
    const wide = matchMedia("(min-width: 64rem)").matches;
    return html`<details class="panel" open=${open ?? wide} onToggle=${(event) => setOpen(event.target.open)}>
      <summary><h2>${title} <span class="count">${count}</span></h2></summary>
      ${children}
    </details>`;
  }

  function Held({ found, pods }) {
    const { holders } = found;
    return html`<${Panel} title="Held by" count=${holders.length}>
      ${holders.length === 0 && html`<p class="quiet">Nobody holds any of it.</p>`}
      <ul class="holders">${holders.slice(0, MOST).map(({ holder, devices, nodes }) => html`<li key=${holder.key}><${Holder} holder=${holder} pods=${pods}
        detail=${`${devices ? counted(devices, "device") : "no device"} on ${counted(nodes, "node")}`} /></li>`)}</ul>
      ${holders.length > MOST && html`<p class="quiet">${holders.length - MOST} more are not listed here.</p>`}
    <//>`;
  }

  function Waiting({ waiting, shown }) {
    const beyond = (waiting.total ?? 0) - (waiting.pods ?? []).length;
    return html`<${Panel} title="Pods without a node" count=${waiting.total ?? 0}>
      ${shown.length === 0 && html`<p class="quiet">${waiting.total ? "None of them matches the search." : "No Pod waits."}</p>`}
      <ul class="plain">${shown.map((pod) => html`<li key=${pod.uid || pod.name}>
        <b>${pod.namespace}/${pod.name}</b> <span class="quiet">${pod.state}${pod.seconds ? `, seen ${since(pod.seconds)} ago` : ""}</span>
        ${pod.reasons.map((reason) => html`<p class="reason">${reason}</p>`)}
      </li>`)}</ul>
      ${beyond > 0 && html`<p class="quiet">${beyond} more are not listed here.</p>`}
    <//>`;
  }

  function SignIn({ source }) {
    const field = useRef();
    useEffect(() => field.current.focus(), []);
    const send = (event) => {
      event.preventDefault();
      const { value } = event.target.elements.token;
      if (value.trim()) source.signIn(value);
    };
    return html`<main class="signin">
      <h1>Device map</h1>
      <p>Sign in with the token of a Kubernetes user or ServiceAccount that may <code>get</code> the path <code>/koordgate/map</code>:</p>
      <pre tabindex="0">kubectl create token NAME --namespace NAMESPACE</pre>
      <form onSubmit=${send}>
        <label for="token">Token</label>
        <input id="token" ref=${field} name="token" type="password" autocomplete="off" spellcheck=${false} required />
        <button type="submit">Sign in</button>
      </form>
      <p class="quiet">The token stays in this tab and is sent to this server only.</p>
      <p class="why" role="alert">${source.message}</p>
    </main>`;
  }

  Object.assign(koordgate, { Held, Picked, SignIn, Waiting });
})();
