// Trades the code behind the '#' for a session. The code is in no request but this one's
// body, so no log holds it.
"use strict";
(async () => {
  const status = document.getElementById("status");
  const code = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  if (!code) {
    status.textContent = "This link is incomplete: the part after the # is missing.";
    return;
  }
  try {
    const answer = await fetch("/_cnlab/session", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ code }),
      redirect: "manual",
    });
    if (answer.type === "opaqueredirect") {
      location.replace("/lab");
      return;
    }
    const problem = await answer.json();
    status.textContent = problem.try ? `${problem.detail}: ${problem.try}` : problem.detail;
  } catch {
    status.textContent = "CNLab did not answer. Load this page again from the link.";
  }
})();
